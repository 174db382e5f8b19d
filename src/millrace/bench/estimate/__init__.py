"""`millrace bench estimate` and `millrace bench coverage`: early answers, and whether their intervals hold."""
