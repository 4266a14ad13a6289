/* ckpt - checkpoints.
 *
 * safetensors, manifests, saving in the background; files of other programs read and written in place; adapters;
 * weights mapped into memory.
 *
 * Used by: encoder/text, encoder/vae, train, vfm-ckpt
 * Calls: base, io, spec/model
 * Read first: ckpt.h, save.h, weights.h
 */
