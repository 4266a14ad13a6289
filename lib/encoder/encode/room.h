/* encoder/encode - encodes clips, texts and pictures to latents and rows, and decodes latents.  An encoder is built in,
 * native (in this process, on a device) or a child: one table of functions with three rows.
 *
 * Used by: train/run, train/sample, vfm-curate, vfm-sample
 * Calls: base, data/record, device/dev, device/open, encoder, io, media/av, spec/model
 * Read first: encoder.h, encode.h, decode.h, encoder_impl.h
 */
