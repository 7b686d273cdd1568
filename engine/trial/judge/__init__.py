"""The judge's process: seeds, inputs, expected outputs, clocks and the verdict. It imports nothing of the runner."""
