/* What the shared library shows to its users. */
#ifndef HOLDFAST_EXPORT_H
#define HOLDFAST_EXPORT_H

#define HOLDFAST_API __attribute__((visibility("default")))

#endif
