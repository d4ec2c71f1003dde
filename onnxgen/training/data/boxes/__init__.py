"""Readers of boxes: COCO, YOLO and Pascal VOC."""
