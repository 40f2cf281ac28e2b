"""loaded(): which operators a tensor's device gets, and that they are built once."""

import pytest
import torch

from common.kernels.loaded import loaded


def test_the_device_chooses_the_backend(device, backend):
    operators = loaded("softmax", device)
    assert (operators.task, operators.backend, operators.device.type) == ("softmax", backend, device)
    assert loaded("softmax", torch.device(device)) is operators


def test_other_devices_and_rooms_are_refused():
    with pytest.raises(ValueError, match="device is 'meta'; the kernels run on 'cuda', and in the simulator on 'cpu'"):
        loaded("softmax", "meta")
    with pytest.raises(ValueError, match=r"task is 'soft'; it must be one of .*softmax"):
        loaded("soft", "cpu")
