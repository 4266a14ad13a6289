/* encoder/text - text encoders: T5 and UMT5 with tokenization and clean-up, on any device; the built-in encoder of
 * bytes.
 *
 * Used by: encoder/encode
 * Calls: base, ckpt, data/record, device/dev, device/ops, io, spec/model
 * Read first: t5.h, text_tokenizer.h, clean.h, textbytes.h
 */
