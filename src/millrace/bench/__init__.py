"""Benchmarks: what millrace costs beside what a user would pick instead, in one run on the same data.

This package sits beside the command line: it may use every layer, nothing uses it.
"""
