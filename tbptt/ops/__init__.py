"""Forward and backward passes written by hand: recurrent layers, and the loss of a linear layer."""
