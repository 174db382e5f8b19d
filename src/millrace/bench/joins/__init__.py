"""`millrace bench joins`: the semi-stream joins in process, on a disk and on simulated devices."""
