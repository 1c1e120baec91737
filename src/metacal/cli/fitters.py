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
    """Functions that fit a calibration map and describe the calibrator that fitted it.

    Attributes
    ----------
    fit_map : callable
        Function that fits the base calibration map.
    make_recipe : callable
        Function that returns the calibrator's class and parameters, to be called after the fit.
    """

    fit_map: FitMap
    make_recipe: Callable[[], Recipe | None]


def choose_map_fitter(calibrator_name: str | None, seed: int | None, n_classes: int) -> MapFitter:
    """Choose the function that fits the calibration map, by the name of a calibrator.

    Parameters
    ----------
    calibrator_name : str or None
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
    from metacal.maps.composed import get_default_calibrator_name
    from metacal.maps.methods import AUTOMATIC_METHODS, METHODS, get_calibrator_class

    # A fixed seed is sufficient, because the folds of a calibrator are not used to certify.
    fold_seed = 0 if seed is None else seed
    if calibrator_name in AUTOMATIC_METHODS:
        # An automatic calibrator chooses a method when it is fitted, so its recipe is known then.
        calibrator = get_calibrator_class(calibrator_name)(random_state=fold_seed)
        return MapFitter(
            fit_map=lambda rows, codes, weights: calibrator.fit_rows(rows, codes, weights).map_,
            make_recipe=lambda: calibrator.gate_.source.recipe,
        )
    method = METHODS[calibrator_name or get_default_calibrator_name(n_classes)]
    fit_parameters = {}
    if "random_state" in method.options:
        fit_parameters["random_state"] = fold_seed
    return MapFitter(
        fit_map=partial(method.get_fit_function(), **fit_parameters),
        make_recipe=lambda: Recipe(method.public_name, fit_parameters),
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
            "--reject-label",
            "The classes are integers, so --reject-label must be an integer too, but got"
            f" {text!r}.",
        ) from None
