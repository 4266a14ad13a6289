/* spec/model - architectures and their arithmetic.
 *
 * The table of architectures, how other programs store them, dimensions and presets, parameters and FLOPs, dtypes,
 * slices of tensors, sizes of video tokenizers.
 *
 * Used by: ckpt, comm, data, device, encoder, net, spec, train, vfm-bench, vfm-ckpt, vfm-curate,
 *   vfm-sample, vfm-train
 * Calls: base, io
 * Read first: model.h, arch.h, foreign.h, geometry.h
 */
