"""Maps that answer by a curve of each class's own probability, or of the predicted class's."""
