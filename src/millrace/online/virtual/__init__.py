"""The experiments of the PR-Join paper on devices with a virtual clock, and its analytical models."""
