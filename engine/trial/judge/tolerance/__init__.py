"""The correctness check: limits on errors, how they are calibrated, and the policies that apply them."""
