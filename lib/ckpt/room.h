/* ckpt - checkpoints: safetensors, manifests, saves in the background; files of other programs, which are read in place
 * and written; adapters; weights mapped into memory.
 *
 * Used by: encoder/image, encoder/text, encoder/vae, train, vfm-ckpt
 * Calls: base, io, spec/model
 * Read first: ckpt.h, save.h, weights.h
 */
