/* parquet_impl.h - the parts of the reader of Parquet: schema, footer, values of a page, pages of a column, rows of a
 * column.
 *
 * A leaf of the schema has values with two levels each (Dremel, Melnik et al. 2010): the definition level says up to
 * which optional or repeated field of its path something is there, and the repetition level at which repeated field of
 * its path it goes on.  0 begins a row.
 */
#ifndef VFM_CURATE_TABLE_PARQUET_IMPL_H
#define VFM_CURATE_TABLE_PARQUET_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "curate/table/parquet.h"
#include "curate/table/thrift.h"

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

/* ---- the schema (parquet_schema.c) ---- */

enum parquet_form { PF_PLAIN, PF_UNSIGNED, PF_DECIMAL, PF_UUID, PF_FLOAT16 };

struct parquet_leaf {
	char *name; /* with the names of all groups around it: "tags.list.element" */
	enum parquet_type type;
	enum parquet_form form; /* what its values mean */
	int width;              /* bytes of PT_FIXED */
	int precision, scale;   /* digits of PF_DECIMAL, and of them behind the point */
	int max_def, max_rep;   /* its levels; def of a value that is not null */
	const char *unread;     /* NULL, or the name of a type that is not read */
};

/* What a column is made of.  A list or map has its element, or key and value, as children; a struct its fields. */
enum parquet_kind { PK_LEAF, PK_STRUCT, PK_LIST, PK_MAP };

struct parquet_node { /* children begin behind their parent */
	enum parquet_kind kind;
	char *name; /* the last part: the key in an object */
	int def;    /* it is null below this level; a list is empty at it */
	int rep;    /* of a list or map: of its second element and all others */
	int first_leaf, n_leaves;
	int end; /* the next node that is not within it */
};

struct parquet_column {
	char *name; /* "meta.fps" */
	int node;
};

struct parquet_chunk { /* a leaf in a row group */
	int64_t start, bytes, n_values;
	int32_t type, codec;
};

struct parquet_meta {
	struct parquet_leaf *leaves;
	struct parquet_node *nodes;
	struct parquet_column *columns;
	int n_leaves, n_nodes, n_columns;
	int64_t n_rows;
	int64_t *group_rows;          /* [n_groups] */
	struct parquet_chunk *chunks; /* [n_groups, n_leaves] */
	size_t n_groups, group_cap, chunk_cap;
	struct vfm_arena names;
};

/* Reads the field of FileMetaData that has the schema: sets leaves, nodes and columns.  VFM_EINPUT. */
int parquet_schema_read(
	struct parquet_meta *m, struct vfm_thrift *t, const struct vfm_thrift_field *f, struct vfm_err *err);
/* VFM_EINPUT names a column that cannot be read, and its type. */
int parquet_column_check(const struct parquet_meta *m, int column, struct vfm_err *err);

/* ---- the footer (parquet_meta.c) ---- */

/* Parses FileMetaData; chunks lie within the first `data_end` bytes of the file.  VFM_EINPUT.  Release in any case. */
int parquet_meta_parse(struct parquet_meta *m, const uint8_t *data, size_t n, int64_t data_end, struct vfm_err *err);
void parquet_meta_release(struct parquet_meta *m);

struct parquet_page {
	int32_t kind;         /* 0 data, 2 dictionary, 3 data of version 2; others are skipped */
	int64_t packed, size; /* bytes in the file, and of them unpacked */
	int64_t n_values, encoding;
	int64_t def_encoding, rep_encoding; /* of the levels */
	int64_t def_bytes, rep_bytes;       /* version 2 */
	bool is_packed;                     /* version 2: the values are compressed */
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
/* Finds the texts of a dictionary page.  VFM_EINPUT: it has fewer than n values; VFM_EENV: no memory.  *d holds nothing
 * before. */
int parquet_dictionary_init(struct parquet_dictionary *d, const struct parquet_leaf *leaf, const uint8_t *data,
	size_t bytes, int64_t n, struct vfm_err *err);
void parquet_dictionary_release(struct parquet_dictionary *d);

/* The values of a data page, in order.  Numbers of up to 8 bytes are integers or reals, all others texts: also the
 * bytes of INT96 and FIXED_LEN_BYTE_ARRAY. */
struct parquet_values {
	const struct parquet_leaf *leaf;
	const struct parquet_dictionary *dictionary; /* NULL: the column has none */
	int encoding;
	const uint8_t *p, *end;
	uint64_t bit;      /* booleans */
	size_t stride, at; /* BYTE_STREAM_SPLIT: values of the page */
	struct parquet_hybrid hybrid;
	struct parquet_delta delta, prefixes; /* numbers or lengths; of DELTA_BYTE_ARRAY */
	char *text; /* DELTA_BYTE_ARRAY: the last value; BYTE_STREAM_SPLIT: the bytes of one */
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

/* ---- what values mean (parquet_forms.c) ---- */

enum { PARQUET_TEXT = 96 };

/* Turns a value of parquet_values_next into a cell; `text` may become its text.  VFM_EINPUT: the cell has no such
 * value, but the values behind it are good. */
int parquet_form_apply(
	const struct parquet_leaf *leaf, struct vfm_cell *cell, char text[PARQUET_TEXT], struct vfm_err *err);

/* ---- the pages of a leaf (parquet_cursor.c) ---- */

struct parquet_file {
	int fd;
	const char *name;
};

struct parquet_bytes {
	uint8_t *data;
	size_t size;
};

struct parquet_cursor { /* `= {.leaf = leaf, .values.leaf = leaf}` */
	const struct parquet_leaf *leaf;
	int def, rep;       /* of the current value */
	bool has_value;     /* there is a current one */
	int64_t at, end;    /* of the chunk: the next page */
	int64_t chunk_left; /* values behind this page */
	int64_t left;       /* values of this page */
	int64_t codec;
	struct parquet_bytes file, page, dictionary_page;
	struct parquet_dictionary dictionary;
	bool has_dictionary;
	struct parquet_hybrid defs, reps;
	struct parquet_values values;
	char text[PARQUET_TEXT];
};

void parquet_cursor_begin(struct parquet_cursor *c, const struct parquet_chunk *chunk);
/* Sets the levels of the current value; the same until it is taken.  Returns 1, or 0 at the end of the chunk;
 * VFM_EINPUT: damage. */
int parquet_cursor_peek(struct parquet_cursor *c, const struct parquet_file *f, struct vfm_err *err);
/* Takes the current value: *cell is null if def < max_def.  The cell is valid until the next peek.  VFM_EINPUT:
 * damage. */
int parquet_cursor_take(struct parquet_cursor *c, struct vfm_cell *cell, struct vfm_err *err);
void parquet_cursor_release(struct parquet_cursor *c);

/* ---- the rows of a column (parquet_assemble.c) ---- */

/* A fault of a row behind which the next row is good: the first is kept. */
struct parquet_fault {
	bool is_set;
	struct vfm_err err;
	size_t bytes;  /* of memory of the row's lists and maps, estimated */
	int64_t taken; /* values of them */
};

/* Reads a row of a column; `cursors` are those of its leaves.  A cell of the type VFM_CELL_JSON is the caller's.
 * VFM_EINPUT: damage, and *cell is null. */
int parquet_assemble(const struct parquet_meta *m, int column, struct parquet_cursor *cursors,
	const struct parquet_file *f, struct vfm_cell *cell, struct parquet_fault *fault, struct vfm_err *err);

#endif
