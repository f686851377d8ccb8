"""Image models: shapes, sizes of the published networks, bytes to floats."""

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.population import Population
from vision.models import MODELS
from vision.models.convnet import CNN, CNNOptions, ConvNet, ConvNetOptions, Pixels
from vision.models.resnet import ResNet, ResNet18, ResNet18Options, ResNetOptions


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["cnn", "convnet", "resnet", "resnet18"])
@pytest.mark.parametrize("channels", [1, 3])
def test_features_and_logits(name, channels):
    population = Population(lambda: MODELS[name]((channels, 32, 32), 7, MODELS[name].Options()))
    state = population.initial()
    x = torch.randint(0, 256, (1, 2, channels, 32, 32), dtype=torch.uint8)
    population.train()
    features = population.encode(state, x)
    assert features.shape[:2] == (1, 2)
    assert population.decode(state, features).shape == (1, 2, 7)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["cnn", "convnet", "resnet", pytest.param("resnet18", marks=pytest.mark.repeats)]
)
def test_mixed_precision_gives_nearly_the_same_logits(name):
    build = lambda: MODELS[name]((3, 16, 16), 7, MODELS[name].Options())  # noqa: E731
    images = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    logits = []
    for precision in ("no", "bf16"):
        population = Population(build, mixed_precision=precision)
        state = population.initial()
        population.train()
        logits.append(population.decode(state, population.encode(state, images)))
    assert {t.dtype for t in logits} == {torch.float32}
    assert 0 < (logits[0] - logits[1]).abs().max() < 0.1 * logits[0].std()


def n_parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_the_published_sizes():
    # He et al., Table 6: ResNet-20 has 0.27 M parameters, with 10 classes and RGB.
    assert n_parameters(ResNet((3, 32, 32), 10, ResNetOptions(depth=20))) == 272_474
    # McMahan et al., section 3: 1,663,370 parameters; without padding, (32·25 + 32) + (64·32·25 +
    # 64) + (512·1024 + 512) + (10·512 + 10).
    assert n_parameters(CNN((1, 28, 28), 10, CNNOptions())) == 1_663_370
    assert n_parameters(CNN((1, 28, 28), 10, CNNOptions(padding="none"))) == 582_026
    # torchvision's ResNet-18 with 1,000 classes has 11,689,512.
    imagenet = ResNet18((3, 224, 224), 1000, ResNet18Options(stem="imagenet"))
    assert n_parameters(imagenet) == 11_689_512


@pytest.mark.repeats
def test_a_small_stem_keeps_the_resolution():
    small, large = (
        ResNet18((3, 32, 32), 10, ResNet18Options(stem=s)) for s in ("cifar", "imagenet")
    )
    x = torch.zeros(1, 3, 32, 32)
    for model, side in ((small, 32), (large, 8)):
        body = model.encoder.module[1]
        assert body.maxpool(body.relu(body.bn1(body.conv1(x)))).shape[-1] == side


def test_bytes_become_floats_around_0():
    x = torch.tensor([[[[0, 51]], [[102, 255]]]], dtype=torch.uint8)
    torch.testing.assert_close(Pixels()(x), torch.tensor([[[[-1.0, -0.6]], [[-0.2, 1.0]]]]))
    torch.testing.assert_close(Pixels()(x.float() / 255), Pixels()(x))


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_normalisation_of_the_convnet(norm):
    names = [name for name, _ in ConvNet((1, 8, 8), 3, ConvNetOptions(norm=norm)).named_buffers()]
    assert any("running_mean" in name for name in names) == (norm == "batch")


@pytest.mark.parametrize("depth", [7, 9, 18, 2])
def test_other_depths_are_refused(depth):
    with pytest.raises(InputError, match=f"depth is {depth}"):
        ResNetOptions(depth=depth)


@pytest.mark.parametrize(("side", "padding"), [(3, "same"), (15, "none")])
def test_images_too_small_for_the_cnn(side, padding):
    with pytest.raises(InputError, match="too small"):
        CNN((1, side, 20), 10, CNNOptions(padding=padding))
