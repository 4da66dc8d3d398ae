"""From one level to the next: graph to tensor, tensor to loop, and the host program with its memory plan."""
