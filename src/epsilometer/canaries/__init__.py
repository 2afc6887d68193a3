"""What is planted: gradients of chosen directions, and records that stand out."""
