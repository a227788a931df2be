"""What differs between two checkpoints, of one run or of two: values in, values out."""
