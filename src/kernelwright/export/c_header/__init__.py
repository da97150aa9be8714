"""A C and C++ header for the host: configs, their choice by sizes, launches."""
