/* device/dev - the device table: memory, streams, events, uploads that overlap compute, measurements of stalls and of
 * the host link, plugins.
 *
 * Used by: comm/coll, comm/device, device, encoder, net, train, vfm-bench
 * Calls: base, io
 * Read first: dev.h, upload.h
 */
