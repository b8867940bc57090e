"""What a CUDA machine is asked, in one command: `python -m tests.gpu`."""
