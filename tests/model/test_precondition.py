from __future__ import annotations

import math

import pytest
import torch

from blockswarm.model.precondition import c_in, c_noise, c_out, c_skip, loss_weight


@pytest.mark.parametrize(("sigma", "weight"), [(1.0, 5.0), (2.0, 4.25), (10.0, 4.01)])
def test_the_loss_weight_at_sigma_data_one_half(sigma: float, weight: float) -> None:
    assert loss_weight(sigma, 0.5) == pytest.approx(weight)


@pytest.mark.parametrize("sigma", [0.002, 0.5, 1.0, 10.0, 80.0])
@pytest.mark.parametrize("sigma_data", [0.5, 1.0])
def test_closed_forms(sigma: float, sigma_data: float) -> None:
    root = math.hypot(sigma, sigma_data)
    assert c_skip(sigma, sigma_data) == pytest.approx((sigma_data / root) ** 2)
    assert c_out(sigma, sigma_data) == pytest.approx(sigma * sigma_data / root)
    assert c_in(sigma, sigma_data) == pytest.approx(1 / root)
    assert c_noise(sigma) == pytest.approx(math.log(sigma) / 4)
    # What the weight is for: it undoes the scale c_out gives to F's error.
    assert loss_weight(sigma, sigma_data) * c_out(sigma, sigma_data) ** 2 == pytest.approx(1.0)


def test_tensors_and_floats_agree() -> None:
    sigma = torch.tensor([1.0, 2.5, 10.0])
    for function in (c_skip, c_out, c_in, loss_weight):
        assert function(sigma, 0.5).tolist() == pytest.approx([function(s, 0.5) for s in sigma.tolist()])
    assert c_noise(sigma).tolist() == pytest.approx([c_noise(s) for s in sigma.tolist()])
