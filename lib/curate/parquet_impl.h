/* parquet_impl.h - the parts of the reader of Parquet: footer, values of a page. */
#ifndef VFM_CURATE_PARQUET_IMPL_H
#define VFM_CURATE_PARQUET_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "curate/parquet.h"
#include "curate/thrift.h"

/* As in parquet.thrift. */
enum parquet_type { PT_BOOLEAN, PT_INT32, PT_INT64, PT_INT96, PT_FLOAT, PT_DOUBLE, PT_BYTE_ARRAY, PT_FIXED, PT_TYPES };

enum parquet_encoding {
	PE_PLAIN = 0,
	PE_PLAIN_DICTIONARY = 2,
	PE_RLE = 3,
	PE_DELTA_BINARY_PACKED = 5,
	PE_DELTA_LENGTH_BYTE_ARRAY = 6,
	PE_DELTA_BYTE_ARRAY = 7,
	PE_RLE_DICTIONARY = 8,
	PE_BYTE_STREAM_SPLIT = 9,
};

/* ---- the footer (parquet_meta.c) ---- */

struct parquet_leaf {
	char *name;
	enum parquet_type type;
	bool is_unsigned;
	int max_level;       /* definition level of a value: the optional structs it is in, and itself */
	const char *refused; /* NULL, or why it cannot be read: "is a list" */
};

struct parquet_chunk { /* a column of a row group */
	int64_t start, bytes, n_values;
	int32_t type, codec;
};

struct parquet_meta {
	struct parquet_leaf *leaves;
	int n_leaves;
	int64_t n_rows;
	int64_t *group_rows;          /* [n_groups] */
	struct parquet_chunk *chunks; /* [n_groups, n_leaves] */
	size_t n_groups, group_cap, chunk_cap;
};

/* Parses FileMetaData; chunks lie within the first `data_end` bytes of the file.  VFM_EINPUT.  Release in any case. */
int parquet_meta_parse(struct parquet_meta *m, const uint8_t *data, size_t n, int64_t data_end, struct vfm_err *err);
void parquet_meta_release(struct parquet_meta *m);

struct parquet_page {
	int32_t kind;         /* 0 data, 2 dictionary, 3 data of version 2; others are skipped */
	int64_t packed, size; /* bytes in the file, and of them unpacked */
	int64_t n_values, encoding, level_encoding, level_bytes, repetition_bytes;
	bool is_packed; /* version 2: the values are compressed */
	bool has_crc;
	uint32_t crc;
};

/* Parses PageHeader.  Returns its bytes, or 0 if it is damaged or longer than n. */
size_t parquet_page_parse(struct parquet_page *page, const uint8_t *data, size_t n);

/* ---- values (parquet_values.c) ---- */

/* The hybrid of runs and packed numbers of `width` bits. */
struct parquet_hybrid {
	const uint8_t *p, *end;
	int width;
	uint64_t repeats, packed; /* left of the run, or of the packed numbers */
	uint64_t value;           /* of the run */
	uint64_t bit;             /* the next packed number begins at this bit of p */
};
void parquet_hybrid_init(struct parquet_hybrid *h, const uint8_t *p, size_t n, int width);
/* Returns false at the end of the data. */
bool parquet_hybrid_next(struct parquet_hybrid *h, uint32_t *v);

struct parquet_delta {
	struct vfm_thrift in;
	uint64_t block, minis; /* values of a block; miniblocks of it */
	uint64_t left;         /* values */
	bool first;
	uint64_t last, min;
	const uint8_t *widths, *bits; /* of the block; of the miniblock */
	uint64_t mini, in_mini, bit;  /* the next miniblock; values left in this one */
	int width;
};

struct parquet_dictionary {
	const uint8_t *data; /* [n] plain values; belongs to the page */
	uint32_t *starts;    /* of texts: [n + 1] offsets of their lengths */
	uint32_t n;
};
/* Finds the texts of a dictionary page.  VFM_EINPUT: it has fewer than n values.  *d holds nothing before. */
int parquet_dictionary_init(struct parquet_dictionary *d, const struct parquet_leaf *leaf, const uint8_t *data,
	size_t bytes, int64_t n, struct vfm_err *err);
void parquet_dictionary_release(struct parquet_dictionary *d);

/* The values of a data page, in order. */
struct parquet_values {
	const struct parquet_leaf *leaf;
	const struct parquet_dictionary *dictionary; /* NULL: the column has none */
	int encoding;
	const uint8_t *p, *end;
	uint64_t bit;      /* booleans */
	size_t stride, at; /* BYTE_STREAM_SPLIT: values of the page */
	struct parquet_hybrid hybrid;
	struct parquet_delta delta, prefixes; /* numbers or lengths; of DELTA_BYTE_ARRAY */
	char *text;                           /* DELTA_BYTE_ARRAY: the last value */
	size_t text_len, text_cap;
};

/* Returns the name of an encoding, also of one that is not read. */
const char *parquet_encoding_name(int64_t encoding);
/* Begins a page of `n` bytes; keeps the memory of `text`.  VFM_EINPUT: the encoding is not read, or the data are
 * damaged. */
int parquet_values_begin(
	struct parquet_values *v, int64_t encoding, const uint8_t *data, size_t n, struct vfm_err *err);
/* VFM_EINPUT: there is no further value, or it is damaged. */
int parquet_values_next(struct parquet_values *v, struct vfm_cell *cell, struct vfm_err *err);
void parquet_values_release(struct parquet_values *v);

#endif
