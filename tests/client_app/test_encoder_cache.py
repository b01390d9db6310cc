"""Features of a large encoder are computed once, whoever asks again."""

import torch

from protosphere.client_app.encoder_cache import cached

FACTS = {"encoder": "one", "device": "cpu"}
INPUTS = torch.arange(24, dtype=torch.uint8).reshape(4, 6)


class Counting:
    """An encoder that knows how often it was asked."""

    def __init__(self):
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return torch.full((4, 3), float(self.asked))


def test_the_same_samples_are_read_once_and_others_or_another_encoder_anew(tmp_path):
    encode = Counting()
    first = cached(tmp_path, FACTS, INPUTS, encode)
    assert torch.equal(cached(tmp_path, FACTS, INPUTS.clone(), encode), first)
    assert encode.asked == 1
    for facts, inputs in ((FACTS, INPUTS.flip(0)), (FACTS | {"encoder": "two"}, INPUTS), (FACTS, INPUTS.float())):
        cached(tmp_path, facts, inputs, encode)
    assert encode.asked == 4
    assert torch.equal(cached(tmp_path, FACTS, INPUTS, encode), first)


def test_a_damaged_file_is_made_anew(tmp_path):
    encode = Counting()
    cached(tmp_path, FACTS, INPUTS, encode)
    (path,) = tmp_path.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert float(cached(tmp_path, FACTS, INPUTS, encode)[0, 0]) == 2.0
    assert float(cached(tmp_path, FACTS, INPUTS, encode)[0, 0]) == 2.0
