"""AdamW over one flat vector is torch's AdamW, without what torch loads for it."""

import subprocess
import sys

import torch

from blockswarm.model.adamw import FlatAdamW


def test_it_makes_the_same_steps_as_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1000, generator=generator)
    reference = torch.nn.Parameter(values.clone())
    theirs = torch.optim.AdamW([reference], lr=1.0, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    gradient = torch.zeros_like(values)
    ours = FlatAdamW([values], [gradient], betas=(0.9, 0.95), weight_decay=0.1)
    for rate in (1e-2, 5e-3, 1e-3):
        gradient.copy_(torch.randn(1000, generator=generator))
        reference.grad = gradient.clone()
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        ours.step(rate)
        torch.testing.assert_close(values, reference.data, rtol=0, atol=0)


def test_a_step_does_not_load_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from blockswarm.model.adamw import FlatAdamW\n"
        "FlatAdamW([torch.zeros(4)], [torch.ones(4)], betas=(0.9, 0.95), weight_decay=0.0).step(1e-3)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
