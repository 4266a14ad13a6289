/* document.h - loads a configuration that a person writes: JSON, YAML or TOML by the name of the file. */
#ifndef VFM_IO_DOCUMENT_H
#define VFM_IO_DOCUMENT_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"

/* Loads a file of at most `max` bytes: YAML if its name ends in .yaml or .yml (yaml.h), TOML if it ends in .toml, else
 * JSON.  A mapping of YAML and a table of TOML are an object.  As vfm_json_load (json.h); the message names file and
 * line.
 *
 * TOML 1.0 is read by a child, share/exec/config_toml.py, which needs Python 3.11.  Dates, infinities, NaN and integers
 * beyond 64 bits are refused, and so are more than 32 levels. */
json_t *vfm_document_load(const char *path, size_t max, struct vfm_err *err);

#endif
