/* encoder/image - encoders of given pictures: the vision tower of CLIP, on any device.
 *
 * Used by: encoder/encode
 * Calls: base, ckpt, data/record, device/dev, device/ops, io, spec/model
 * Read first: clip_vision.h
 */
