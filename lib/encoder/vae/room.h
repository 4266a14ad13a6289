/* encoder/vae - video autoencoders: those of Wan, Cosmos, LTX-Video and HunyuanVideo, executed frame by frame from a
 * list of layers; the built-in wavelet; the condition of image to video.
 *
 * Used by: encoder/encode, train/run, train/sample
 * Calls: base, ckpt, data/record, device/dev, device/ops, io, spec/model
 * Read first: vae.h, vae_impl.h, wavelet.h, condition.h
 */
