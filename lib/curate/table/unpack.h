/* unpack.h - the compression codecs of Parquet's pages.
 *
 * SNAPPY is the raw format of snappy's format_description.txt and LZ4_RAW that of lz4_Block_format.md, both decoded
 * here; LZ4 is the same in the framing of Hadoop, or bare.  GZIP is zlib's.  ZSTD and BROTLI are the libraries
 * libzstd.so.1 and libbrotlidec.so.1, opened at the first page that needs them.
 */
#ifndef VFM_CURATE_TABLE_UNPACK_H
#define VFM_CURATE_TABLE_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* As in parquet.thrift, CompressionCodec. */
enum vfm_compression {
	VFM_CODEC_NONE = 0,
	VFM_CODEC_SNAPPY = 1,
	VFM_CODEC_GZIP = 2,
	VFM_CODEC_BROTLI = 4,
	VFM_CODEC_LZ4 = 5,
	VFM_CODEC_ZSTD = 6,
	VFM_CODEC_LZ4_RAW = 7,
};

/* Returns the name of any codec of the format, also of one that is not read; "an unknown codec". */
const char *vfm_codec_name(int64_t codec);
/* VFM_EINPUT: the codec is not read.  VFM_EENV: its library is missing. */
int vfm_codec_check(int64_t codec, struct vfm_err *err);

/* Returns the most bytes that n compressed ones can have, before memory is allocated for them. */
uint64_t vfm_unpack_most(int64_t codec, size_t n);

/* Decompresses src [n] to exactly dst [len] bytes.  VFM_EINPUT: the data are damaged or have another length.
 * Thread-safe.  The codec has passed vfm_codec_check. */
int vfm_unpack(int64_t codec, const uint8_t *src, size_t n, uint8_t *dst, size_t len, struct vfm_err *err);

#endif
