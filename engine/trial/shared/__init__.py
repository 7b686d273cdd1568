"""What judge and runner share: lent memory, its layout, arguments as data, the CUDA driver."""
