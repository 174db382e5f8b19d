"""What joins hold in memory and in the temporary file, and the sums of two sets of rows."""
