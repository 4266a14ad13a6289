/* unpack.h - the compression codecs of Parquet's pages.
 *
 * SNAPPY is the raw format of snappy's format_description.txt, decoded here; GZIP is zlib's.  ZSTD is the library
 * libzstd.so.1, opened at the first page that needs it.
 */
#ifndef VFM_CURATE_UNPACK_H
#define VFM_CURATE_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* As in parquet.thrift, CompressionCodec. */
enum vfm_codec {
	VFM_CODEC_NONE = 0,
	VFM_CODEC_SNAPPY = 1,
	VFM_CODEC_GZIP = 2,
	VFM_CODEC_ZSTD = 6,
};

/* Returns the name of any codec of the format, also of one that is not read; "an unknown codec". */
const char *vfm_codec_name(int64_t codec);
/* VFM_EINPUT: the codec is not read.  VFM_EENV: its library is missing. */
int vfm_codec_check(int64_t codec, struct vfm_err *err);

/* Decompresses src [n] to exactly dst [len] bytes.  VFM_EINPUT: the data are damaged or have another length.
 * Thread-safe.  The codec has passed vfm_codec_check. */
int vfm_unpack(int64_t codec, const uint8_t *src, size_t n, uint8_t *dst, size_t len, struct vfm_err *err);

#endif
