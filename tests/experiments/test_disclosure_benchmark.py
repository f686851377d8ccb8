"""The benchmark of disclosure: attacks that must succeed, and verdicts that methods declare."""

import pandas as pd
import pytest
import torch

from experiments.benchmarks import disclosure
from experiments.benchmarks.digits import Painters
from experiments.benchmarks.groups import by_secret_groups
from experiments.benchmarks.inversion import (
    Victims,
    closeness,
    least_squares,
    solved,
    weekly_guess,
)
from experiments.benchmarks.rotation import unrotated
from experiments.benchmarks.unrolled import UnrolledUploads, with_gradients
from experiments.site.measured import RESULTS
from stforecast.federated.nodes.disclosure import FOUND
from stforecast.methods import METHODS
from vision.methods import METHODS as IMAGES


def table(days, cells):
    """Return hourly readings of cells that share a day, with noise of their own."""
    rng = torch.Generator().manual_seed(0)
    day = torch.arange(24 * days)[:, None] * 2 * torch.pi / 24
    values = 50 + 10 * day.sin() + 5 * torch.randn(24 * days, cells, generator=rng)
    times = pd.date_range("2024-01-01", periods=24 * days, freq="h")
    return pd.DataFrame(values.numpy(), times, [f"c{i}" for i in range(cells)])


@pytest.fixture(scope="module")
def victims():
    return Victims.of(table(14, 9), "fedlean", 1)


def test_a_plain_upload_of_fedlean_gives_up_the_readings_of_a_cell(victims):
    guess = weekly_guess(victims.readings)
    found = disclosure.products_of(victims, [2]).mean_reading(guess[:, [2]])
    near = closeness(found, victims.readings[:, [2]])
    assert near["within .01"] > 0.99
    assert (
        disclosure.disclosed(near, closeness(guess[:, [2]], victims.readings[:, [2]])) == "readings"
    )


def test_the_sum_over_cells_gives_up_their_mean_and_not_each_cell_by_linear_equations(victims):
    truth, cells = victims.readings, list(range(9))
    guess = weekly_guess(truth).mean(1, keepdim=True)
    mean = disclosure.products_of(victims, cells).mean_reading(guess)
    assert closeness(mean, truth.mean(1, keepdim=True))["within .01"] > 0.99
    assert closeness(mean.expand(-1, 9), truth)["within .01"] < 0.1


def test_equations_of_the_mean_week_are_what_clients_send(victims):
    truth = victims.readings
    found = disclosure.by_mean_week(victims, [[0], [1, 2]], torch.zeros(len(truth), 2).double())
    sent = victims.sent["hours"].double()
    of_found = victims.method.mean_week(victims.with_values(torch.tensor([0, 0]), found))
    expected = torch.stack([sent[0], sent[1:3].mean(0)])
    torch.testing.assert_close(of_found, expected, rtol=1e-4, atol=1e-4)
    assert closeness(found[:, :1], truth[:, :1])["within .01"] < 0.1


@pytest.mark.parametrize("name", ["fedtrees", "protoridge", "fedda"])
def test_what_the_attacker_assumes_of_inputs_is_what_the_method_reads(name):
    victims = Victims.of(table(14, 3), name, 1)
    inputs, truth = victims.inputs, torch.nn.functional.pad(victims.readings, (0, 0, 0, 1))
    x = victims.samples.tensors["x"].double().permute(1, 2, 0)
    lags = inputs.steps.shape[1]
    torch.testing.assert_close(truth[inputs.steps], x[:, :lags], rtol=1e-4, atol=1e-4)
    profile = x[:, x.shape[1] - inputs.profile.shape[1] :]
    found = torch.einsum("wpt,tc->wpc", inputs.profile, truth[:-1])
    torch.testing.assert_close(found, profile, rtol=1e-4, atol=1e-4)


def test_equations_decide_where_they_can_and_the_guess_elsewhere():
    equations = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]], dtype=torch.float64)
    found = solved(equations, torch.tensor([[2.0], [3], [5]]).double(), torch.ones(3, 1).double())
    torch.testing.assert_close(found[:, 0], torch.tensor([2.0, 3, 1]).double())


@pytest.mark.parametrize(
    ("exact", "near", "r", "verdict"),
    [(0.15, 0.3, 0.9, "readings"), (0.02, 0.7, 0.9, "readings"), (0.02, 0.35, 0.9, "some"),
     (0.02, 0.2, 0.96, "some"), (0.02, 0.2, 0.9, "little")],
)  # fmt: skip
def test_a_verdict_follows_from_the_numbers_and_the_guess(exact, near, r, verdict):
    names = ("within .01", "within .1", "correlation")
    guess = dict(zip(names, (0.02, 0.18, 0.88), strict=True))
    assert disclosure.disclosed(dict(zip(names, (exact, near, r), strict=True)), guess) == verdict


SENDS_MORE = {"fedgh": "fedproto"}
"""Methods that nobody attacked, but whose uploads hold all that another method's do."""


@pytest.mark.parametrize("verdict", ["readings", "some"])
def test_exactly_the_methods_whose_plain_upload_gave_readings_up_declare_it(verdict):
    """By the worst of the attacks on cells, whatever the settings."""
    rows = pd.read_csv(RESULTS / "federation" / "disclosure.csv").query(
        "upload == 'plain' and days.notna()"
    )
    worst = {name: disclosure.worst(own).split()[0] for name, own in rows.groupby("method")}
    worst |= {name: worst[less] for name, less in SENDS_MORE.items()}
    found = {name for name, of_method in worst.items() if of_method == verdict}
    declared = {name for name, method in METHODS.items() if method.attacked.discloses == verdict}
    assert found == (declared if verdict == "readings" else declared & worst.keys())


SAID = {
    "FedProto's most of them": ("fedproto", "perceptron", "readings"),
    "FUELS's half to within a tenth": ("fuels", "perceptron", "some"),
    "codebook moved, and finds little": ("fedpm", "perceptron", "little"),
    "FedAvg and FedRep gave little": ("fedavg|fedrep", "(?!digits).*", "little"),
    "gives up the image of a client that has a single one": ("fedavg", ".*one image", "readings"),
    "Of eight images in a batch, it gave little": ("fedavg", ".*eight images", "little"),
    "so did PFPL's prototypes": ("pfpl", ".*", "little"),
}
"""Words of the page of security; methods and settings that they are about; and the verdict."""


@pytest.mark.parametrize("said", SAID)
def test_what_the_page_of_security_says_of_attacks_on_training_is_what_they_found(said):
    page = (RESULTS.parent / "security.md").read_text()
    rows = pd.read_csv(RESULTS / "federation" / "disclosure.csv").fillna({"settings": ""})
    method, settings, verdict = SAID[said]
    assert said in " ".join(page.split())
    of = rows["method"].str.fullmatch(method) & rows["settings"].str.fullmatch(settings)
    own = rows[of].groupby(["method", "settings"])
    assert len(own)
    assert {disclosure.worst(each).split()[0] for _, each in own} == {verdict}


def test_words_of_an_undeclared_method_do_not_deny_attacks_of_the_table():
    attacked = set(pd.read_csv(RESULTS / "federation" / "disclosure.csv")["method"])
    methods = {**IMAGES, **METHODS}
    assert "unmeasured" in {methods[name].attacked.discloses for name in attacked}
    assert "nobody" not in FOUND["unmeasured"]


def apart(senders, values, rounds=1):
    """How far clients would move otherwise with the true values than they did, by name.

    It is the norm of the difference, as a share of the norm of what moved in the first round.
    """
    heard, sent = zip(*senders.rounds(rounds), strict=True)
    ids = torch.arange(values.shape[1])
    with with_gradients():
        found = UnrolledUploads(senders, ids, heard)(values)
    assert len({name.partition("/")[0] for name in found}) == rounds
    before, shares = senders.state.clients.params, {}
    for name, t in found.items():
        number, _, of = name.partition("/")
        mean = sent[int(number)][of][ids].mean(0)
        moved = mean - before[of][0] if of in before else mean
        shares[name] = float((t.detach() - mean).norm() / moved.norm())
    return shares


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "fuels", "fedproto"])
def test_unrolled_training_sends_what_the_method_sends(method):
    """Else its inversion would find nothing, and prove nothing."""
    victims = Victims.of(table(14, 3), method, 1, model="mlp")
    assert max(apart(victims, victims.readings[:, :2], rounds=2).values()) < 1e-3


def test_the_memory_of_fedpm_moves_as_it_did_while_its_encoder_is_held():
    victims = Victims.of(table(14, 3), "fedpm", 1, model="mlp")
    assert apart(victims, victims.readings[:, :1])["0/memory"] < 0.2


@pytest.mark.parametrize("method", ["fedavg", "pfpl"])
def test_unrolled_training_on_digits_sends_what_the_method_sends(method):
    painters = Painters.of(method, 2, 1)
    pixels = painters.pixels[:, painters.ids[0]].mT.reshape(-1, 1)
    found = apart(painters, pixels)
    # Bytes are rounded where digits are resized.
    assert found["0/head.weight" if method == "fedavg" else "0/prototypes"] < 0.05


def test_least_squares_end_at_the_solution_of_nonlinear_equations():
    truth = torch.tensor([[0.8, -0.5], [1.5, 0.3]], dtype=torch.float64)
    turn = torch.tensor([[1.0, 0.5], [-0.2, 1.0]], dtype=torch.float64)

    def errors(x):
        return torch.cat([(turn @ x - turn @ truth).flatten(), (x.sin() - truth.sin()).flatten()])

    def slopes(x, _):
        columns = [torch.autograd.functional.jacobian(errors, x)[..., c] for c in range(2)]
        return torch.cat(columns, dim=1)

    found = least_squares(errors, slopes, torch.zeros_like(truth), 50)
    torch.testing.assert_close(found, truth)


def test_all_products_give_each_of_three_cells_and_the_order_is_that_of_the_truth():
    truth = Victims.of(table(14, 3), "fedlean", 1).readings
    assert closeness(unrotated(truth), truth)["within .01"] > 0.9


def test_groups_that_nodes_drew_in_secret_are_found_from_calendar_inputs():
    victims = Victims.of(table(14, 3), "protoridge", 1)
    truth, guess = victims.readings[:, :1], weekly_guess(victims.readings)
    found = by_secret_groups(victims, guess, cells=1)
    near, guessed = closeness(found, truth), closeness(guess[:, :1], truth)
    assert near["correlation"] > guessed["correlation"]


@pytest.mark.slow
@pytest.mark.attack("disclosure")
def test_products_of_readings_give_each_of_two_summed_cells():
    victims = Victims.of(table(14, 4), "fedlean", 1)
    found, truth, guess = disclosure.each_of_few(victims, weekly_guess(victims.readings))
    assert closeness(found, truth)["correlation"] > closeness(guess, truth)["correlation"]


@pytest.mark.slow
@pytest.mark.attack("disclosure")
def test_linear_equations_of_a_sum_over_nine_cells_come_no_nearer_to_a_cell_than_their_mean(
    victims,
):
    truth, guess = victims.readings, weekly_guess(victims.readings).mean(1, keepdim=True)
    found = disclosure.products_of(victims, list(range(9))).mean_reading(guess).expand(-1, 9)
    mean = closeness(truth.mean(1, keepdim=True).expand(-1, 9), truth)
    assert closeness(found, truth)["correlation"] < mean["correlation"] + 0.01


@pytest.mark.slow
@pytest.mark.attack("disclosure")
def test_the_update_of_a_client_with_one_digit_gives_it_up():
    found, truth, guess = Painters.of("fedavg", 1, 1, model="cnn").found()
    assert closeness(found, truth)["correlation"] > closeness(guess, truth)["correlation"]
