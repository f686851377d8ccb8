"""Keys of random generators for draws of different purposes."""

from vision.draws import Draw


def test_draws_of_a_server_do_not_meet_those_outside_of_rounds():
    """A generator's key of three numbers may also be a round's, with the server's two after it."""
    keys = {draw.value for draw in Draw}
    assert len(keys) == len(Draw.__members__)
    assert not {key[1:] for key in keys if len(key) == 3} & keys
