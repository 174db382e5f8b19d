"""`millrace bench cost`: what the joins were expected to do, beside what they did."""
