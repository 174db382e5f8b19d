"""Looks at some rows before and beside a run: their order, their blocks, their heavy keys."""
