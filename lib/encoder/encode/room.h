/* encoder/encode - clips and texts to latents and rows, and back.
 *
 * With the built-in encoders, those of this process or children.
 *
 * Used by: vfm-curate encode and decode, vfm-sample
 * Calls: base, data/dataset, data/record, encoder, io, media/av, spec/model, train/job
 * Read first: coder.h, encode.h, codec.h, encoders.h
 */
