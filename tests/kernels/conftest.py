"""One thread: small tensors, and other tests may run beside these."""

import torch

torch.set_num_threads(1)
