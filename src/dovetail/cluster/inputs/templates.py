"""The 26 jobs that generated workloads are drawn from, in the order that makes seeds mean what they meant before."""

from __future__ import annotations

from typing import NamedTuple


class Template(NamedTuple):
    """A model with its batch size, and how its training was started; `%s` in a command is the folder of the data."""

    model: str
    family: str
    batch: int
    command: str
    folder: str
    steps_flag: str
    needs_data: bool = True


def _family(name: str, batches: tuple[int, ...], command: str, folder: str, steps_flag: str) -> list[Template]:
    return [
        Template(f"{name} (batch size {batch})", name, batch, command.replace("{}", str(batch)), folder, steps_flag)
        for batch in batches
    ]


TEMPLATES = (
    *_family(
        "ResNet-18",
        (16, 32, 64, 128, 256),
        "python3 main.py --data_dir=%s/cifar10 --batch_size {}",
        "image_classification/cifar10",
        "--num_steps",
    ),
    *_family(
        "ResNet-50",
        (16, 32, 64, 128),
        "python3 main.py -j 8 -a resnet50 -b {} %s/imagenet/",
        "image_classification/imagenet",
        "--num_minibatches",
    ),
    *_family(
        "Transformer",
        (16, 32, 64, 128, 256),
        "python3 train.py -data %s/translation/multi30k.atok.low.pt -batch_size {} -proj_share_weight",
        "translation",
        "-step",
    ),
    *_family(
        "LM",
        (5, 10, 20, 40, 80),
        "python main.py --cuda --data %s/wikitext2 --batch_size {}",
        "language_modeling",
        "--steps",
    ),
    *_family(
        "Recommendation",
        (512, 1024, 2048, 4096, 8192),
        "python3 train.py --data_dir %s/ml-20m/pro_sg/ --batch_size {}",
        "recommendation",
        "-n",
    ),
    Template(
        "A3C",
        "A3C",
        1,
        "python3 main.py --env PongDeterministic-v4 --workers 4 --amsgrad True",
        "rl",
        "--max-steps",
        needs_data=False,
    ),
    Template(
        "CycleGAN",
        "CycleGAN",
        1,
        "python3 cyclegan.py --dataset_path %s/monet2photo --decay_epoch 0",
        "cyclegan",
        "--n_steps",
    ),
)
BY_MODEL = {template.model: template for template in TEMPLATES}
