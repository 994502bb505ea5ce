#include <gtest/gtest.h>

#include "text/tokenizer.hpp"

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    holdfast::silence_libraries();
    return RUN_ALL_TESTS();
}
