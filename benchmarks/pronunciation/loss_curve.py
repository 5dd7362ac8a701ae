"""Draw the learning curve of a training run."""

from pathlib import Path

import matplotlib.pyplot as plt


def draw_losses(losses: Path, picture: Path) -> None:
    """Draw the losses of training and held-out words, by epoch, as SVG."""
    rows = [[float(x) for x in line.split("\t")] for line in losses.read_text().splitlines()]
    epochs, training, dev = zip(*rows, strict=True)
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "heed"}  # the same bytes each time
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(epochs, training, color="#777777")
    left.set_title("training", fontsize=10)
    right.plot(epochs, dev, color="#1f5fa8")
    right.set_title("held-out words", fontsize=10)
    for axes in (left, right):
        axes.set(xlabel="epoch", ylabel="nats per phoneme")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, metadata={"Date": None})
