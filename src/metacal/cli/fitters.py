"""Calibration method and reject label that commands pass to a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from metacal.cli.values import bad_option

if TYPE_CHECKING:
    from metacal.gate import FitMap, Recipe
    from metacal.io.predictions import Predictions


@dataclass(frozen=True)
class MapFitter:
    """Method that fits the base calibration map.

    Attributes
    ----------
    fit : callable
        Fits the map.
    recipe : callable
        Returns a description of the method, after the fit.
    """

    fit: FitMap
    recipe: Callable[[], Recipe | None]


def map_fitter(name: str | None, seed: int | None, n_classes: int) -> MapFitter:
    """Return the method that fits the base calibration map.

    Parameters
    ----------
    name : str or None
        Name of a calibrator. None selects the default.
    seed : int or None
        Seed of the calibrator's folds.
    n_classes : int
        Number of classes, which determines the default.

    Returns
    -------
    MapFitter
    """
    from metacal.gate import Recipe
    from metacal.maps.composed import get_default_base_method
    from metacal.maps.methods import CHOOSERS, METHODS, get_calibrator_class

    # The folds of a calibrator certify nothing, so their seed need not be derived from the rows.
    fold_seed = 0 if seed is None else seed
    if name in CHOOSERS:
        # A chooser is a scikit-learn estimator.
        chooser = get_calibrator_class(name)(random_state=fold_seed)
        return MapFitter(
            fit=lambda *arguments: chooser.fit_rows(*arguments).map_,
            recipe=lambda: chooser.gate_.source.recipe,
        )
    method = METHODS[name or get_default_base_method(n_classes)]
    parameters = {"random_state": fold_seed} if "random_state" in method.options else {}
    return MapFitter(
        fit=partial(method.fit_function(), **parameters),
        recipe=lambda: Recipe(method.public_name, parameters),
    )


def parse_reject_label(text: str | None, predictions: Predictions) -> str | int | None:
    """Convert --reject-label to the type of the classes: text or a whole number."""
    class_names = predictions.class_names
    has_text_classes = class_names is not None and isinstance(class_names[0], str)
    if text is None or has_text_classes:
        return text
    try:
        return int(text)
    except ValueError:
        raise bad_option(
            "--reject-label", f"{text!r} must be a whole number, as the classes are."
        ) from None
