"""Keys of random generators for draws of different purposes."""

from vision.datasets import image_set
from vision.methods import creff, fedgen, fedic, fedmgp, fedta, generator, prompts
from vision.partition import base
from vision.streams import fedta_tasks, gldp_shards


def test_draws_of_different_purposes_have_different_keys():
    """A generator's key of three numbers may also be a round's, with the server's two after it."""
    keys = [
        image_set.TAIL, image_set.HELD_OUT, fedta_tasks.CLASSES, fedta_tasks.IMAGES,
        gldp_shards.LENGTHS, gldp_shards.DEAL, gldp_shards.TEST, base.DOMAINS, image_set.TEST_SPLIT,
        prompts.INIT, creff.FEATURES,
    ]  # fmt: skip
    server = [m.SERVER for m in (fedic, fedmgp, fedgen, generator)] + [fedta.TARGET]
    assert len(set(keys)) == len(keys)
    assert len(set(server)) == len(server)
    assert not {key[1:] for key in keys} & set(server)
