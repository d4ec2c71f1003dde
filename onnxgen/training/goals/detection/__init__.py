"""Detectors of boxes: raw maps are decoded to boxes, points are assigned to targets, and one loss serves all heads.

A target is the column "boxes": float32 [batch, most, 5], whose rows are (class, x1, y1, x2, y2). Corners are shares of
the image's width and height, from 0 to 1. Rows of -1 fill up images with fewer boxes.
"""
