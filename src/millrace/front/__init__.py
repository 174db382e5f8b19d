"""The front door: functions that check what a user asks for and hand it to one of several engines."""
