/* device/dev - the device table.
 *
 * Memory, streams, events, uploads under compute, measurements of stalls and of the host link, plugins.
 *
 * Used by: everyone who computes
 * Calls: base, io
 * Read first: dev.h, upload.h
 */
