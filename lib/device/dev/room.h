/* device/dev - the table of functions that a device is.
 *
 * Memory, streams, events, uploads under compute, measurements of stalls and of the host link, plugins.
 *
 * Used by: everyone who computes
 * Calls: base, io
 * Read first: dev.h, upload.h
 */
