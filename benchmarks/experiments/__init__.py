"""What the experiments share: logits files, journals, processes, figures."""
